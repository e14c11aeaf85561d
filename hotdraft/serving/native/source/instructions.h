#pragma once
#include "forward.h"

// The build of that name, or the best if `wanted` is null; null if this processor does not run it.
const Instructions *find_instructions(const char *wanted);
