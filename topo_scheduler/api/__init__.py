"""The words users write and read: annotations, labels, configuration, Kubernetes objects, reasons. Data only."""
