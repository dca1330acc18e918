"""What a start without tracing would cost and keep: an experiment over private functions of Dynamo.

It is the measurement behind ADR 14. No service uses it.
"""
