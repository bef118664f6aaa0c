"""Hard attention to the task (HAT) and CPT: each domain learns a mask of units that later domains cannot change."""
