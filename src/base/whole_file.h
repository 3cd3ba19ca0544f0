// Files that are read and written as one string: compiled programs, the cache, .poptorch files, options, reports. No
// other code of ours writes such files, in Python either. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace abele {

/// The limit of readWholeFile for texts that people write.
constexpr int64_t kMostTextBytes = int64_t{64} << 20;

/// magic: how the file must begin; it is checked before the rest is read (E0501). most_bytes: -1 means what fits into
/// the machine's memory. Refuses a folder, pipe, socket or device without waiting for it. Throws E0712 when the file
/// cannot be read.
std::string readWholeFile(const std::string& path, std::string_view magic = {}, int64_t most_bytes = -1);

/// Writes under a temporary name that no other process has, then renames. Both steps are flushed to the disk. After a
/// crash of the process or of the machine, either the old or the new file is there and complete. A symbolic link of
/// this name is replaced, not followed. Also removes temporary files of processes that died while writing to this
/// folder. Throws E0712; the old file then stays.
void writeWholeFile(const std::string& path, std::string_view bytes);
/// The same for contents of which memory cannot hold a second copy: parts(write) calls write for each part.
using WritePart = std::function<void(std::string_view bytes)>;
void writeWholeFile(const std::string& path, const std::function<void(const WritePart& write)>& parts);

/// Removes temporary files of processes that died while writing to this folder. Files of live processes stay. Never
/// throws.
void removeLeftovers(const std::string& folder);

}  // namespace abele
