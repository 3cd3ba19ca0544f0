#include "device/processes/step_agreement.h"

#include <algorithm>
#include <array>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "collective/announcement.h"

namespace abele::device {
namespace {

enum Fact : uint8_t { kHypers, kInputs, kRandom, kUploads };
struct FactRow {
  Fact fact;
  const char* has;       // for "process 1 ... than process 0"
  const char* expected;  // all processes, or those of one replica
  const char* remedy;
};
constexpr std::array<FactRow, 4> kFacts{{
    {kHypers, "has other hyper-parameters", "the same optimizer in all processes",
     "set the same learning rate, momentum, loss scaling and so on in each"},
    {kRandom, "draws other random numbers", "the same random stream in all processes",
     "set the same randomSeed in each, and load the same checkpoint"},
    {kUploads, "has other values of weights that both hold", "the same weights in all processes",
     "seed all processes alike before the model is made, or load the same checkpoint in each"},
    {kInputs, "was given another batch", "the same batch in all processes that hold stages of one replica",
     "let each of them read the same samples in the same order: a sampler that shuffles needs the same seed"},
}};

uint64_t hashOfTensor(const at::Tensor& tensor, uint64_t seed) {
  const at::Tensor dense = tensor.cpu().contiguous();
  return collective::hashOf(dense.const_data_ptr(), dense.nbytes(), seed);
}

}  // namespace

bool StepAgreement::isInSeveral(const exe::External& external) const {
  if (external.slot < 0) return false;
  const auto processOf = [&](int32_t slot) { return executable_.processOf(executable_.slots[slot].group); };
  return std::ranges::any_of(external.copies, [&](const exe::ExternalCopy& copy) {
    return processOf(copy.slots[0]) != processOf(external.slot);
  });
}

void StepAgreement::noteUpload(int32_t external, const at::Tensor& host) {
  if (peers_ && isInSeveral(executable_.externals[external])) uploads_[external] = hashOfTensor(host, 0);
}

void StepAgreement::noteInputs(const std::vector<at::Tensor>& inputs) {
  if (!peers_) return;
  inputs_ = 0;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (executable_.input_slots[i] >= 0) inputs_ = hashOfTensor(inputs[i], inputs_);
}

void StepAgreement::begin(uint64_t hypers, const at::Generator& random, const RoundingPosition& rounding) {
  if (!peers_) return;
  collective::Announcement own{.act = "runs a step", .facts = {hypers, inputs_, 0, 0}};
  if (executable_.isRandom()) own.facts[kRandom] = hashOfTensor(random.get_state(), 0);
  if (rounds_)
    own.facts[kRandom] = collective::hashOf(&rounding.step, sizeof rounding.step, own.facts[kRandom] + rounding.seed);
  for (const auto& [external, hash] : uploads_)
    own.facts[kUploads] = collective::hashOf(&hash, sizeof hash, own.facts[kUploads] + static_cast<uint64_t>(external));
  collective::announce(*peers_, own);
}

void StepAgreement::agree() {
  if (!peers_) return;
  const std::vector<collective::Announcement> all = collective::requireSameAct(*peers_);
  const auto differingIn = [&](const FactRow& row) {
    const int64_t kinds = row.fact == kInputs ? executable_.stage_processes : peers_->processes();
    return collective::firstDiffering(all, row.fact, kinds);
  };
  const auto* row = std::ranges::find_if(kFacts, [&](const FactRow& each) { return differingIn(each).process >= 0; });
  // A process that throws leaves the group, so it waits until all have come this far and can say the same.
  if (executable_.training || row != kFacts.end()) peers_->agree();
  if (row == kFacts.end()) return;
  const collective::Differing differing = differingIn(*row);
  throwUser(ErrorCode::E0713,
            {.what = cat("process ", differing.process, " ", row->has, " than process ", differing.from),
             .at = cat("process ", peers_->process(), " of ", peers_->processes()),
             .expected = row->expected,
             .remedy = row->remedy});
}

}  // namespace abele::device
