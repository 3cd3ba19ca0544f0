// For users of the library: what is visible outside libabele.
#pragma once

#define ABELE_API __attribute__((visibility("default")))
