"""What a power loss may leave of a real broker's files, told from the system calls it made.

kill -9 cannot show a missing fsync: the kernel still writes everything out. So the calls of a real broker are recorded (`strace`), replayed
on a model of the disk that knows what was synced (`filesystem`), and cut off where power might fail (`crash_states`). The same recording
holds the bytes on the broker's sockets (`conversations`), and with them what it had promised by then (`history`, `verdict`).
"""
