"""What is counted while the server runs, and how it is shown: plain integers, and Prometheus' text format. Pure.

Whoever does something increases an attribute of an object here; nobody is called. A library's counter costs a
microsecond, `counted.appends += 1` a tenth of one. What can be told at any time (log ends, members, connections) is not
counted but looked up when somebody asks.
"""
