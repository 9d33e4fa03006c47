"""Pictures that grow while a program runs."""
