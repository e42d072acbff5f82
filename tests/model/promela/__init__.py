"""The protocol in Promela, and Spin, which checks it."""
