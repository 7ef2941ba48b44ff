"""The server: listeners, connections, dispatch, one file per API, and the node that puts them together."""
