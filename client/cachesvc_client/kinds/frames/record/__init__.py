"""What a builder does: it records the frames that Dynamo makes, and what their traces read."""
