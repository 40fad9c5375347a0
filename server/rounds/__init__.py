"""What runs in each turn of the loop, and what runs now and then.

    alarm.py         rings when it is time, to the tenth of a millisecond
    resting.py       gives back memory that work has left behind
    timetable.py     APScheduler by running time
    counting.py      keeps the counts of slices by time
    housekeeping.py  what has to be done now and then
    simulation.py    walks of a simulated clock
    app.py           a core turned in rounds on an event loop

Each imports only what stands above it.
"""
