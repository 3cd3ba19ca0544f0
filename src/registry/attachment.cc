#include "registry/attachment.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include <pwd.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/turns.h"
#include "registry/devices.h"

namespace abele::registry {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(100);  // between two looks while waiting for devices
constexpr int64_t kLookForFileNs = 10'000'000'000;           // between two checks that the file still exists

int64_t now() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// The attachments of this process. A forked child has a copy of its parent's.
struct OwnAttachments {
  Turns turns;  // guards the other members; free in a forked child
  std::set<const Attachment*> all;
};
// Never destroyed: models that are static objects of the program end later.
OwnAttachments& ownAttachments() {
  static auto* const attachments = new OwnAttachments;
  return *attachments;
}

std::string baseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// "python train.py": the program, and the script or module that it runs. Leaves the other arguments out, because they
/// may be secret.
std::string commandOfProcess() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; words.size() < 3 && std::getline(in, word, '\0');) words.push_back(word);
  if (words.empty()) return "";
  std::string command = baseName(words[0]);
  if (!baseName(words[0]).starts_with("python") || words.size() < 2) return command;
  if (words[1] == "-m" && words.size() == 3) return cat(command, " -m ", words[2]);
  return words[1].starts_with("-") ? command : cat(command, " ", baseName(words[1]));
}

std::vector<Attached> othersAttached() {
  std::vector<Attached> others;
  forEachHeldRecord([&](const HeldRecord& held) {
    std::optional<Attached> attached = readRecord(held.bytes, now());
    if (!attached) return;
    attached->pid = held.pid;  // the kernel's number, because the file's may be wrong
    attached->user_id = held.user_id;
    others.push_back(*std::move(attached));
  });
  return others;
}

std::vector<Attached> ownAttached() {
  OwnAttachments& own = ownAttachments();
  const Turns::Turn turn = own.turns.take("the registry of devices");
  std::vector<Attached> found;
  for (const Attachment* attachment : own.all) {
    Attached attached = attachment->attached();
    if (attached.pid == ::getpid()) found.push_back(std::move(attached));
  }
  return found;
}

std::vector<DeviceUsers> usersOfDevices(const std::vector<Attached>& others) {
  std::vector<DeviceUsers> users;
  const auto count = [&](const std::vector<Attached>& all, int64_t DeviceUsers::*field) {
    for (const Attached& attached : all)
      for (const AttachedDevice& device : attached.devices) {
        if (users.size() <= static_cast<size_t>(device.id)) users.resize(static_cast<size_t>(device.id) + 1);
        ++(users[static_cast<size_t>(device.id)].*field);
      }
  };
  count(others, &DeviceUsers::others);
  count(ownAttached(), &DeviceUsers::own);
  return users;
}

/// "device 0: python train.py (4711)", for the first few users.
std::string usersText(const std::vector<Attached>& others) {
  constexpr size_t kMost = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, others.size()); ++i) {
    const std::vector<AttachedDevice>& devices = others[i].devices;
    text += cat(i ? ", " : "", others[i].command, " (process ", others[i].pid, ") has ");
    text += devices.empty()       ? std::string("none")
            : devices.size() == 1 ? cat("device ", devices.front().id)
                                  : cat("devices ", devices.front().id, " to ", devices.back().id);
  }
  return text + (others.size() > kMost ? cat(" and ", others.size() - kMost, " more") : "");
}

Attached ownAs(const Request& request, int64_t first, bool is_exclusive) {
  Attached own{.pid = ::getpid(),
               .user_id = static_cast<int64_t>(::geteuid()),
               .command = commandOfProcess(),
               .model = request.model,
               .is_training = request.is_training,
               .is_exclusive = is_exclusive};
  const std::vector<std::string>& targets = request.targets;
  for (int64_t d = 0; d < request.num_devices; ++d)
    own.devices.push_back(
        {.id = first + d,
         .target = targets.empty() ? std::string("cpu") : targets[static_cast<size_t>(d) % targets.size()]});
  return own;
}

/// Warns that other programs cannot see the devices of this process.
void warnOnce(const std::string& why) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  log::warn("other processes cannot see the devices of this one (", why,
            "): set ABELE_REGISTRY to a writable folder, or to off");
}

}  // namespace

std::optional<int64_t> firstDevice(const Request& request, const std::vector<DeviceUsers>& users, bool needs_free) {
  const int64_t number = numDevices();
  std::vector<DeviceGroup> candidates;
  if (request.group) {
    const std::vector<DeviceGroup> groups = deviceGroups();
    if (*request.group >= 0 && static_cast<size_t>(*request.group) < groups.size())
      candidates.push_back({groups[static_cast<size_t>(*request.group)].first, request.num_devices});
  } else if (request.in_groups) {
    const auto size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(request.num_devices)));
    std::ranges::copy_if(deviceGroups(), std::back_inserter(candidates),
                         [&](const DeviceGroup& group) { return group.count == size; });
  } else {
    for (int64_t first = 0; first + request.num_devices <= number; ++first)
      candidates.push_back({first, request.num_devices});
  }
  // A model may use more devices than exist if it does not reserve a group of them.
  if (candidates.empty() && (!needs_free || !request.in_groups)) candidates.push_back({0, request.num_devices});
  std::optional<int64_t> best;
  auto least = std::tuple(std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max());
  for (const DeviceGroup& candidate : candidates) {
    int64_t others = 0, own = 0;
    for (int64_t id = candidate.first; id < candidate.first + candidate.count; ++id) {
      if (static_cast<size_t>(id) >= users.size()) break;
      others += users[static_cast<size_t>(id)].others;
      own += users[static_cast<size_t>(id)].own;
    }
    if ((needs_free && others > 0) || std::tuple(others, own) >= least) continue;
    least = std::tuple(others, own);
    best = candidate.first;
  }
  return best;
}

Attachment::Attachment(Request request, const std::function<bool()>& poll) : request_(std::move(request)) {
  const bool is_exclusive = environmentInteger("ABELE_EXCLUSIVE_DEVICES", 0) != 0;
  const bool waits = environmentInteger("POPTORCH_WAIT_FOR_IPU", 0) != 0;
  std::string path, why;
  Descriptor registry = ownRegistry(&path, &why);
  if (!registry.isOpen() && is_exclusive)
    throwUser(ErrorCode::E0402,
              {.what = "ABELE_EXCLUSIVE_DEVICES is set, but the registry cannot show which devices are in use",
               .found = why.empty() ? std::string("ABELE_REGISTRY is off") : why,
               .remedy = "set ABELE_REGISTRY to a writable folder, or unset ABELE_EXCLUSIVE_DEVICES"});
  if (registry.isOpen())
    removeDeadRecords(registry);
  else if (!why.empty())
    warnOnce(why);
  for (bool has_waited = false;; has_waited = true) {
    std::vector<Attached> others;
    {
      const ChoosingTurn turn(registry);
      others = othersAttached();
      if (const std::optional<int64_t> first = firstDevice(request_, usersOfDevices(others), is_exclusive)) {
        private_ = newRecord(ownAs(request_, *first, is_exclusive), now());
        if (registry.isOpen()) file_ = RecordFile(path, registry, private_);
        if (registry.isOpen() && !file_.isOpen()) warnOnce(cat("no file can be made in ", path));
        writer_ = RecordWriter(file_.isOpen() ? file_.bytes() : private_.data());
        looked_ns_ = now();
        OwnAttachments& all = ownAttachments();
        const Turns::Turn own_turn = all.turns.take("the registry of devices");
        all.all.insert(this);
        return;
      }
    }
    if (!waits || (request_.in_groups && numDevices() < request_.num_devices))
      throwUser(ErrorCode::E0402,
                {.what = cat("no ", request_.num_devices, request_.num_devices == 1 ? " device is" : " devices are",
                             " free", request_.group ? cat(" in group ", *request_.group) : ""),
                 .found = usersText(others),
                 .expected = "devices that no other process has (ABELE_EXCLUSIVE_DEVICES)",
                 .remedy = "set POPTORCH_WAIT_FOR_IPU=1 to wait for them, or unset ABELE_EXCLUSIVE_DEVICES"});
    if (!has_waited) log::info("waiting for devices: ", usersText(others));
    if (poll && poll()) throwUser(ErrorCode::E0602, {.what = "waiting for free devices was interrupted"});
    std::this_thread::sleep_for(kLookAgain);
  }
}

Attachment::~Attachment() {
  OwnAttachments& all = ownAttachments();
  const Turns::Turn turn = all.turns.take("the registry of devices");
  all.all.erase(this);
}

void Attachment::beginStep() {
  if (home_.isHere()) writer_.beginStep();
}

void Attachment::endStep(std::span<const int64_t> busy_ns, bool completed) {
  if (!home_.isHere()) return;
  const int64_t time = now();
  writer_.endStep(busy_ns, completed, time);
  if (time - looked_ns_ < kLookForFileNs) return;
  looked_ns_ = time;
  if (!file_.isOpen() || file_.isThere()) return;
  // The file is gone, for example after a cleanup of the folder, so it is made again.
  std::string path, why;
  const Descriptor registry = ownRegistry(&path, &why);
  if (!registry.isOpen()) return;
  std::memcpy(private_.data(), file_.bytes(), private_.size());
  if (RecordFile next(path, registry, private_); next.isOpen()) {
    const RecordWriter writer = writer_.movedTo(next.bytes());
    const Turns::Turn turn = ownAttachments().turns.take("the registry of devices");
    file_ = std::move(next);
    writer_ = writer;
  }
}

Attached Attachment::attached() const {
  // Other threads may change the counters meanwhile.
  std::vector<std::byte> bytes(private_.size());
  const auto* from = reinterpret_cast<const int64_t*>(file_.isOpen() ? file_.bytes() : private_.data());
  for (size_t at = 0; at < bytes.size(); at += sizeof(int64_t), ++from) {
    const int64_t word = std::atomic_ref(const_cast<int64_t&>(*from)).load(std::memory_order_relaxed);
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
  std::optional<Attached> found = readRecord(bytes, now());
  Attached attached = found ? *std::move(found) : Attached();
  attached.user_id = static_cast<int64_t>(::geteuid());
  return attached;
}

std::vector<Attached> attached() {
  std::vector<Attached> all = othersAttached();
  std::ranges::move(ownAttached(), std::back_inserter(all));
  std::ranges::stable_sort(all, {}, [](const Attached& each) {
    return std::tuple(each.devices.empty() ? int64_t{0} : each.devices.front().id, each.pid);
  });
  return all;
}

std::string userName(int64_t user_id) {
  constexpr size_t kMostBytes = 1 << 16;
  std::vector<char> text(kMostBytes);
  passwd entry{};
  passwd* found = nullptr;
  const int error = ::getpwuid_r(static_cast<uid_t>(user_id), &entry, text.data(), text.size(), &found);
  return error == 0 && found ? std::string(entry.pw_name) : cat(user_id);
}

}  // namespace abele::registry
