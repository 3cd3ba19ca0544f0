#include "device/processes/agreement.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "exe/bytes.h"

namespace abele::device {
namespace {

constexpr char kSame[] =
    "give all processes the same: seed them alike before the model is made, or load the same checkpoint in each";

std::string bytesOf(uint64_t hash) { return {reinterpret_cast<const char*>(&hash), sizeof hash}; }

bool isTrained(const exe::External& external) {
  return external.slot >= 0 &&
         (external.kind == exe::ExternalKind::kParameter || external.kind == exe::ExternalKind::kState);
}

// The first process whose text differs from process 0's, or -1.
int64_t firstOther(const std::vector<std::string>& texts) {
  const auto other = std::find_if(texts.begin(), texts.end(), [&](const std::string& t) { return t != texts[0]; });
  return other == texts.end() ? -1 : other - texts.begin();
}

}  // namespace

uint64_t Agreement::hyperHash() const {
  exe::Writer out;
  for (auto [key, value] : hypers_) {  // copies, because a Writer takes the references that a Reader would fill
    auto [group, name] = key;
    out(group);
    out(name);
    out(value);
  }
  const std::string bytes = out.take();
  return XXH3_64bits(bytes.data(), bytes.size());
}

void Agreement::check(collective::PeerMessages& peers) {
  const std::string own = bytesOf(hyperHash()) + bytesOf(rounding_.seed) + bytesOf(rounding_.step);
  const std::vector<std::string> notes = peers.exchange(own + (has_upload_ ? '1' : '0'));
  const auto partsOf = [&notes](size_t begin, size_t count) {
    std::vector<std::string> parts;
    for (const std::string& note : notes) parts.push_back(note.substr(begin, count));
    return parts;
  };
  const int64_t other = firstOther(partsOf(0, sizeof(uint64_t)));
  ABELE_REQUIRE(other < 0, E0713,
                {.what = cat("process ", other, " has other hyper-parameters than process 0"),
                 .at = cat("process ", peers.process(), " of ", peers.processes()),
                 .expected = "the same optimizer in all processes",
                 .remedy = "set the same learning rate, momentum, loss scaling and so on in each"});
  const int64_t rounds_otherwise = firstOther(partsOf(sizeof(uint64_t), 2 * sizeof(uint64_t)));
  ABELE_REQUIRE(rounds_otherwise < 0, E0713,
                {.what = cat("process ", rounds_otherwise, " rounds with other random numbers than process 0"),
                 .at = cat("process ", peers.process(), " of ", peers.processes()),
                 .expected = "the same random seed in all processes: with stochastic rounding it determines the "
                             "weights",
                 .remedy = "set the same randomSeed in each, and load the same checkpoint"});
  const bool any_upload = std::ranges::any_of(notes, [](const std::string& note) { return note.back() == '1'; });
  if (any_upload) checkWeights(peers);
  has_upload_ = false;
}

void Agreement::checkWeights(collective::PeerMessages& peers) const {
  std::string own;
  std::vector<const exe::External*> trained;
  for (const exe::External& external : executable_.externals) {
    if (!isTrained(external)) continue;
    const int32_t process = executable_.processOf(executable_.slots[external.slot].group);
    if (process >= 0 && process != stage_process_) continue;
    trained.push_back(&external);
    const at::Tensor dense = value_(external.slot).contiguous();
    own += bytesOf(XXH3_64bits(dense.const_data_ptr(), dense.nbytes()));
  }
  const std::vector<std::string> all = peers.exchange(own);
  const int64_t other = firstOther(all);
  if (other < 0) return;
  const std::string& theirs = all[static_cast<size_t>(other)];
  size_t which = 0;
  while (std::memcmp(&all[0][which * sizeof(uint64_t)], &theirs[which * sizeof(uint64_t)], sizeof(uint64_t)) == 0)
    ++which;
  throwUser(ErrorCode::E0713, {.what = cat(trained[which]->name, " of process ", other, " differs from process 0's"),
                               .at = cat("process ", peers.process(), " of ", peers.processes()),
                               .expected = "the same weights and optimizer state in all processes",
                               .remedy = kSame});
}

}  // namespace abele::device
