// For C10dPeers: who was the first to fail, and why. It stands in the store of the processes' group.
#pragma once

#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace abele::runtime {

/// Writes the text unless there is one. Returns what is there then; the text where the store is gone with the process
/// that held it, or where nothing comes back of its host. Waits a few seconds at most. store: not null.
std::string noteFailure(const c10::intrusive_ptr<c10d::Store>& store, const std::string& text) noexcept;
/// "" where nobody has failed.
std::string notedFailure(const c10::intrusive_ptr<c10d::Store>& store) noexcept;

}  // namespace abele::runtime
