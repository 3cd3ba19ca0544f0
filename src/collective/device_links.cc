#include "collective/device_links.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/error.h"
#include "base/log.h"
#include "collective/peers.h"

namespace abele::collective {
namespace {

constexpr int64_t kTriedBytes = 64;
constexpr char kRemedy[] =
    "call torch.distributed.init_process_group(\"cpu:gloo,cuda:nccl\") (the backend of your device) in all processes "
    "before the model is called, give each process accelerators of its own, the same for all programs, or leave "
    "ABELE_HANDOVER out";

struct Maker {
  std::mutex mutex;
  MakeDeviceGroup make;
};
// Never destroyed, because it may hold a Python function.
Maker& maker() {
  static auto* const instance = new Maker;
  return *instance;
}

DeviceGroup makeGroup(int64_t process, const std::string& kind, int64_t first, int64_t second) {
  MakeDeviceGroup make;
  {
    const std::lock_guard lock(maker().mutex);
    make = maker().make;
  }
  if (!make) return {.name = {}, .why_not = "this program cannot make groups of torch.distributed"};
  return make(process, kind, first, second);
}

std::string kindOf(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

// Two characters for each link: the device of this process's end. Links of other processes get no device.
constexpr size_t kPlaceBytes = 2;
std::string placesOf(const std::vector<DeviceLink>& links) {
  std::string text;
  for (const DeviceLink& link : links) {
    text += static_cast<char>(link.own.type());
    text += static_cast<char>(std::max<c10::DeviceIndex>(link.own.index(), 0));
  }
  return text;
}
c10::Device placeIn(const std::string& text, size_t link) {
  const auto type = static_cast<c10::DeviceType>(text[kPlaceBytes * link]);
  return {type, type == c10::DeviceType::CPU ? c10::DeviceIndex{-1} : c10::DeviceIndex{text[kPlaceBytes * link + 1]}};
}

std::string firstLine(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

void setDeviceGroups(MakeDeviceGroup make) {
  const std::lock_guard lock(maker().mutex);
  maker().make = std::move(make);
}

std::vector<DeviceLinks::Made> DeviceLinks::make(const PeerMessages& peers, const std::vector<DeviceLink>& links,
                                                 int64_t stages, const std::vector<std::string>& places,
                                                 std::string& why_not) {
  std::vector<Made> made;
  for (int64_t replica = 0; replica < peers.processes() / stages; ++replica)
    for (size_t k = 0; k < links.size(); ++k) {
      const int64_t from = replica * stages + links[k].from, to = replica * stages + links[k].to;
      const c10::Device source = placeIn(places[static_cast<size_t>(from)], k);
      const c10::Device target = placeIn(places[static_cast<size_t>(to)], k);
      const bool sends = peers.process() == from, is_mine = sends || peers.process() == to;
      const std::string name = cat("a link from process ", from, " to process ", to);
      const Known known{links[k].link, from, to, source.index(), target.index()};
      if (!isTheOneOf(from, source, known) || !isTheOneOf(to, target, known)) {
        why_not = cat(name, " leads to another device than in an earlier program");
        return {};
      }
      if (source.is_cpu() || source.type() != target.type()) {
        if (is_mine)
          log::info(name, " hands over through the host's memory: it is between ", kindOf(source.type()), " and ",
                    kindOf(target.type()));
        continue;
      }
      if (!known_.insert(known).second) continue;
      const DeviceGroup group =
          makeGroup(peers.process(), kindOf(source.type()), std::min(from, to), std::max(from, to));
      if (!group.why_not.empty()) {
        why_not = group.why_not;
        return {};
      }
      if (!is_mine) continue;
      const Communicator communicator = c10d::resolve_process_group(group.name)->getBackend(source.type());
      made.push_back({{links[k].link, sends ? to : from, links[k].own}, sends, communicator});
      log::info(name, " hands over from device to device, by ", communicator->getBackendName());
    }
  return made;
}

bool DeviceLinks::isTheOneOf(int64_t process, c10::Device device, const Known& known) {
  const auto type = static_cast<int>(device.type());
  return known_at_.try_emplace({std::get<0>(known), process, type, device.index()}, known).first->second == known;
}

// Both ends wait until the message has arrived, so the next communicator is made only when this one works.
void DeviceLinks::tryOut(const Made& made) {
  const auto& [end, sends, communicator] = made;
  {
    const std::lock_guard lock(mutex_);
    communicators_[end] = communicator;
    if (is_aborted_) communicator->abort();
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(end.device.type()).getStreamFromGlobalPool(end.device);
  const c10::StreamGuard there(stream);  // a stream of its own, so that the program's streams do not wait
  std::vector<at::Tensor> message{at::zeros({kTriedBytes}, at::TensorOptions(at::kByte).device(end.device))};
  const int other = otherOf(*communicator);
  const auto work =
      sends ? communicator->send(message, other, /*tag=*/0) : communicator->recv(message, other, /*tag=*/0);
  work->wait();
  stream.synchronize();
}

void DeviceLinks::connect(PeerMessages& peers, const std::vector<DeviceLink>& links, int64_t stages) {
  if (links.empty()) return;
  std::string why_not;
  std::vector<Made> made;
  const std::vector<std::string> places = peers.exchange(placesOf(links));
  try {
    made = make(peers, links, stages, places, why_not);
  } catch (const std::exception& error) {
    why_not = firstLine(error);
  }
  const auto refuse = [&](const std::string& what) {
    throwUser(ErrorCode::E0714,
              {.what = what,
               .at = cat("process ", peers.process(), " of ", peers.processes()),
               .found = why_not,
               .expected = "with ABELE_HANDOVER=device, links between accelerators of one kind that send by the "
                           "device's own backend of torch.distributed",
               .remedy = kRemedy});
  };
  const std::vector<std::string> all = peers.exchange(why_not.empty() ? "y" : "n");
  if (const auto none = std::ranges::find(all, "n"); none != all.end())
    refuse(
        cat("process ", none - all.begin(), " cannot reach the accelerators of other processes by torch.distributed"));
  for (const Made& each : made) {
    try {
      tryOut(each);
    } catch (const std::exception& error) {
      why_not = firstLine(error);
      refuse(cat("a link does not reach the accelerator of process ", each.end.other));
    }
  }
  peers.exchange("y");  // a process that was interrupted, or learned of a failure, throws here
}

int DeviceLinks::otherOf(const c10d::Backend& communicator) { return communicator.getRank() == 0 ? 1 : 0; }

DeviceLinks::Communicator DeviceLinks::at(const End& end) const {
  const std::lock_guard lock(mutex_);
  const auto found = communicators_.find(end);
  return found == communicators_.end() ? Communicator() : found->second;
}

void DeviceLinks::abort() {
  std::map<End, Communicator> all;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_aborted_, true)) return;
    all = communicators_;
  }
  for (const auto& [end, communicator] : all) {
    try {
      communicator->abort();
    } catch (const std::exception& error) {
      log::warn("a link to process ", end.other, " cannot be interrupted: ", firstLine(error));
    }
  }
}

void DeviceLinks::abandon() {
  for (auto& [end, communicator] : communicators_) static_cast<void>(communicator.release());
  communicators_.clear();
}

}  // namespace abele::collective
