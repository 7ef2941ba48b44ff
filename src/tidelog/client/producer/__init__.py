"""The producer, from the record that an application sends to the acknowledgement of a broker."""
