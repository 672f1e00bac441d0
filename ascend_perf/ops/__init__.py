"""What kernels are: classes, FLOPs and bytes from shapes."""
