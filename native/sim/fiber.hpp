/* fiber.hpp - a switch between two stacks of one processor: what makes a thread of a GPU on a CPU. */
#pragma once

/* Saves where this is in *from, goes on at to, and returns when something goes on at *from. */
extern "C" void sim_switch(void **from, void *to);
/* A stack that ends below top, on which sim_switch begins with entry; entry must not return. */
void *sim_fiber(char *top, void (*entry)());
