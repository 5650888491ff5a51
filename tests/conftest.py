"""Here so that pytest puts this folder on the path: tests of every subfolder import `harness`."""
