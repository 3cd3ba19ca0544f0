// Files that are read and written as one string: compiled programs, the cache, .poptorch files, options, reports. The
// only code of ours that writes such files, in Python too. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace abele {

/// Limit of readWholeFile for texts that people write.
constexpr int64_t kMostTextBytes = int64_t{64} << 20;

/// magic: what the file must begin with, looked at before the rest is read (E0501). most_bytes: -1 for what the
/// machine's memory can hold. A folder, pipe, socket or device is refused without waiting for it.
/// Throws E0712 when the file cannot be read.
std::string readWholeFile(const std::string& path, std::string_view magic = {}, int64_t most_bytes = -1);

/// Under another name first, which nobody else has, then renamed, both flushed to the disk: after a crash of the
/// process or the machine, the old file is there or the new one, whole. Follows no symbolic link: one of this name is
/// replaced. Removes what processes that died while writing left in this folder. Throws E0712; the old file stays then.
void writeWholeFile(const std::string& path, std::string_view bytes);
/// The same in parts, for files that would not be twice in memory: parts(write) calls write for each.
using WritePart = std::function<void(std::string_view bytes)>;
void writeWholeFile(const std::string& path, const std::function<void(const WritePart& write)>& parts);

/// Removes what processes that died while writing left in a folder; nothing of processes that live. Never throws.
void removeLeftovers(const std::string& folder);

}  // namespace abele
