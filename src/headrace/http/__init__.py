"""The HTTP listener: connections, hosts, startup gate, error responses. Knows no API that is mounted on it."""
