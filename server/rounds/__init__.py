"""Work in each turn of the loop, and periodic work.

    alarm.py         a timer with a resolution of a tenth of a millisecond
    idle_trim.py     frees memory after work
    timetable.py     APScheduler by running time
    counting.py      keeps the cells of slices current
    housekeeping.py  periodic chores
    simulation.py    moves a simulated clock
    app.py           runs a core in rounds on an event loop

Each imports only what stands above it.
"""
