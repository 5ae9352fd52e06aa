/* check_record.h - oracle records (docs/FORMAT.md) for glm52-check. */
#ifndef GLM52_CHECK_RECORD_H
#define GLM52_CHECK_RECORD_H

#include <stdio.h>

#include "glm52.h"

/* Repeats the record that file holds and prints what differs. 1 if nothing does, 0 if something does, -1 if it can't be
 * read. */
int check_record(glm52_model *model, const char *path, FILE *file);

#endif
