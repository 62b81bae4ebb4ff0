"""Every method, the contract of all, and what several share."""
