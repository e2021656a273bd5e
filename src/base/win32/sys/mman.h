/* Stands in for the system's header on Windows, see base/win32/posix_win32.h. */
#include "base/win32/posix_win32.h"
