// Files that are read and written as one string. Used by the executable cache and by .poptorch files.
#pragma once

#include <string>

namespace abele::host {

/// Throws E0712 when the file cannot be read.
std::string readWholeFile(const std::string& path);
/// Under another name first, then renamed: a reader sees the old file, the new one or none. Throws E0712.
void writeWholeFile(const std::string& path, const std::string& bytes);

}  // namespace abele::host
