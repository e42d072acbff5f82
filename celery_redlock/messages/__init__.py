"""Headers, reservations and done marks of messages, and their way back to the queue."""
