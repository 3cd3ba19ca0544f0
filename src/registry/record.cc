#include "registry/record.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace abele::registry {
namespace {

constexpr std::array<char, 8> kMagic = {'A', 'B', 'E', 'L', 'E', 'A', 'T', 'T'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kMostId = int64_t{1} << 20;
/// Load covers the last one to two windows of this length.
constexpr int64_t kWindowNs = 1'000'000'000;

template <size_t size>
std::string textOf(const std::array<char, size>& field) {
  std::string text(field.begin(), std::find(field.begin(), field.end(), '\0'));
  // Terminals show this text, so control characters in it are replaced.
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
  return text;
}

template <size_t size>
void setText(std::array<char, size>& field, std::string_view text) {
  field.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), size - 1), field.begin());
}

bool isTime(int64_t ns) { return ns >= 0 && ns <= INT64_MAX / 2; }

std::atomic_ref<int64_t> shared(int64_t& counter) { return std::atomic_ref(counter); }
int64_t relaxed(int64_t& counter) { return shared(counter).load(std::memory_order_relaxed); }
void setRelaxed(int64_t& counter, int64_t value) { shared(counter).store(value, std::memory_order_relaxed); }

double loadOf(const RecordHeader& header, const DeviceRecord& device, int64_t now_ns) {
  // A step that is running is assumed to be like those before it.
  if (header.is_running == 0 && now_ns - header.ended_ns >= kWindowNs) return 0;
  const int64_t end_ns = header.is_running != 0 ? header.ended_ns : std::max(now_ns, header.ended_ns);
  const double window = static_cast<double>(end_ns) - static_cast<double>(header.window_ns);
  const double busy = static_cast<double>(device.busy_ns) - static_cast<double>(device.window_busy_ns);
  return window > 0 ? std::clamp(busy / window, 0.0, 1.0) : 0;
}

}  // namespace

std::vector<std::byte> newRecord(const Attached& attached, int64_t now_ns) {
  const size_t num_devices = std::min(attached.devices.size(), kMostDevicesOfRecord);
  RecordHeader header{};
  header.magic = kMagic;
  header.version = kVersion;
  header.num_devices = static_cast<uint32_t>(num_devices);
  header.pid = attached.pid;
  header.since_ns = header.window_ns = header.ended_ns = now_ns;
  header.is_training = attached.is_training ? 1 : 0;
  header.is_exclusive = attached.is_exclusive ? 1 : 0;
  setText(header.command, attached.command);
  setText(header.model, attached.model);
  std::vector<std::byte> bytes(recordBytes(num_devices));
  std::memcpy(bytes.data(), &header, sizeof header);
  for (size_t d = 0; d < num_devices; ++d) {
    DeviceRecord device{};
    device.id = attached.devices[d].id;
    setText(device.target, attached.devices[d].target);
    std::memcpy(bytes.data() + recordBytes(d), &device, sizeof device);
  }
  return bytes;
}

std::optional<Attached> readRecord(std::span<const std::byte> bytes, int64_t now_ns) {
  RecordHeader header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic || header.version != kVersion || header.num_devices > kMostDevicesOfRecord ||
      bytes.size() != recordBytes(header.num_devices) || header.pid <= 0 || header.steps < 0 ||
      !isTime(header.since_ns) || !isTime(header.window_ns) || !isTime(header.ended_ns))
    return std::nullopt;
  Attached attached{.pid = header.pid,
                    .command = textOf(header.command),
                    .model = textOf(header.model),
                    .is_training = header.is_training != 0,
                    .is_exclusive = header.is_exclusive != 0,
                    .attached_ns = std::max<int64_t>(0, now_ns - header.since_ns),
                    .steps = header.steps};
  for (size_t d = 0; d < header.num_devices; ++d) {
    DeviceRecord device;
    std::memcpy(&device, bytes.data() + recordBytes(d), sizeof device);
    if (device.id < 0 || device.id >= kMostId || device.busy_ns < 0) return std::nullopt;
    attached.devices.push_back({.id = device.id,
                                .target = textOf(device.target),
                                .busy_ns = device.busy_ns,
                                .load = loadOf(header, device, now_ns)});
  }
  return attached;
}

RecordWriter::RecordWriter(std::byte* record)
    : header_(reinterpret_cast<RecordHeader*>(record)),
      devices_(reinterpret_cast<DeviceRecord*>(record + sizeof(RecordHeader))),
      next_window_ns_(header_->window_ns),
      next_window_busy_ns_(header_->num_devices, 0) {}

RecordWriter RecordWriter::movedTo(std::byte* record) const {
  RecordWriter moved(record);
  moved.next_window_ns_ = next_window_ns_;
  moved.next_window_busy_ns_ = next_window_busy_ns_;
  return moved;
}

void RecordWriter::beginStep() { setRelaxed(header_->is_running, 1); }

void RecordWriter::endStep(std::span<const int64_t> busy_ns, bool completed, int64_t now_ns) {
  shared(header_->sequence).fetch_add(1, std::memory_order_acq_rel);
  const bool is_new_window = now_ns - next_window_ns_ >= kWindowNs;
  if (is_new_window) setRelaxed(header_->window_ns, next_window_ns_);
  for (size_t d = 0; d < next_window_busy_ns_.size(); ++d) {
    const int64_t busy = relaxed(devices_[d].busy_ns) + (d < busy_ns.size() ? busy_ns[d] : 0);
    setRelaxed(devices_[d].busy_ns, busy);
    if (!is_new_window) continue;
    setRelaxed(devices_[d].window_busy_ns, next_window_busy_ns_[d]);
    next_window_busy_ns_[d] = busy;
  }
  if (is_new_window) next_window_ns_ = now_ns;
  setRelaxed(header_->steps, relaxed(header_->steps) + (completed ? 1 : 0));
  setRelaxed(header_->ended_ns, now_ns);
  setRelaxed(header_->is_running, 0);
  shared(header_->sequence).fetch_add(1, std::memory_order_release);
}

}  // namespace abele::registry
