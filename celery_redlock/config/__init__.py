"""Settings and task options, validated."""
