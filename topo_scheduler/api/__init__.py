"""Names and values that users write and read: annotations, labels, configuration, Kubernetes objects, reasons."""
