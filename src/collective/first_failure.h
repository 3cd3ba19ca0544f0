// For C10dPeers: records the process that failed first, and why. The record is in the store of the processes' group.
#pragma once

#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace abele::collective {

/// Writes the text unless the store already has one. Returns the text in the store. Returns `text` if the store is gone
/// with its process, or if its host does not answer. Waits a few seconds at most. store: not null.
std::string noteFailure(const c10::intrusive_ptr<c10d::Store>& store, const std::string& text) noexcept;
/// The recorded failure, or "".
std::string notedFailure(const c10::intrusive_ptr<c10d::Store>& store) noexcept;

}  // namespace abele::collective
