"""Operation of the nodes and locks by people: what the commands show and do."""
