// How many inputs a target took instead of refusing them: the replay of a corpus that is only refused fails.
#pragma once

namespace abele::test {

inline int taken = 0;

}  // namespace abele::test
