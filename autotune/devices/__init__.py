"""What runs kernels: devices, their binaries, and a backend for each kind behind one contract."""
