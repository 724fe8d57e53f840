"""Several training runs that differ in some settings, one after another."""
