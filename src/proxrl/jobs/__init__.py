"""Worker processes that train runs for the process that started them."""
