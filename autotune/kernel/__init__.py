"""What a person declares: a kernel, its space and its source, and what follows without a device."""
