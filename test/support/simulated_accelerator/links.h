// A backend of torch.distributed for simulated devices, as strict as those of real ones may be.
#pragma once

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace simulated {

/// Messages between the processes of a group: in the order in which the two call, whatever their tags say, on a stream
/// of the group. A stream stands still until the other process has called, too, and for ever where that has ended,
/// unless abort() is called. The bytes go through the store.
c10::intrusive_ptr<c10d::Backend> makeLinks(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

}  // namespace simulated
