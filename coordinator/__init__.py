"""The job: take, restore, state and settings. The only room that will talk to other nodes."""
