"""Types that coordinators' state machines share: time and effects. Pure. Imports nothing of Headrace."""
