"""Scaling of the fleet at run time: what the load is, who decides, and what starts and stops instances."""
