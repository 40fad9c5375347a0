"""The console: pages in the browser that show the timeline and change what is on it.

    pages.py     the two routes: `/`, and the scripts and styles that it asks for

What the browser gets is in the folder `static`, as it is: HTML, CSS, ES modules. main.js is where to begin.
Pages are drawn in the browser from the same HTTP API as everybody's. So nothing here knows the app, and a
key sees in the console what it sees elsewhere. Why there is no framework and no build step: decision 0021.
"""
