#include "capture/annotate.h"

#include <c10/util/ScopeExit.h>

#include "base/cat.h"
#include "capture/queries.h"
#include "capture/recorder.h"

namespace abele::capture {
namespace {

int& autoBlockId() {
  thread_local int next = 0;
  return next;
}

/// What the recorder of this thread answers; without a capture `otherwise`, or nothing.
template <class Question, class Answer = std::invoke_result_t<Question, Recorder&>>
Answer ask(const Question& question, const Answer& otherwise) {
  Recorder* recorder = currentRecorder();
  return recorder != nullptr ? question(*recorder) : otherwise;
}
template <class Question>
auto ask(const Question& question) -> std::invoke_result_t<Question, Recorder&> {
  Recorder* recorder = currentRecorder();
  if (recorder != nullptr) return question(*recorder);
  return std::invoke_result_t<Question, Recorder&>();
}

}  // namespace

bool isCapturing() { return currentRecorder() != nullptr; }

void beginBlock(const std::string& user_id, const std::vector<int32_t>& devices) {
  ask([&](Recorder& recorder) { recorder.attribution().beginBlock(user_id, devices); });
}
void endBlock() {
  ask([](Recorder& recorder) { recorder.attribution().endBlock(); });
}
std::string currentBlock() {
  return ask([](Recorder& recorder) { return recorder.attribution().currentBlock(); });
}

std::string nextAutoBlockId() { return cat(autoBlockId()++); }
void resetAutoBlockId() { autoBlockId() = 0; }

void pushScope(const std::string& name) {
  ask([&](Recorder& recorder) { recorder.attribution().pushScope(name); });
}
void popScope() {
  ask([](Recorder& recorder) { recorder.attribution().popScope(); });
}
void setModules(std::function<std::vector<std::string>()> modules) {
  ask([&](Recorder& recorder) { recorder.attribution().setModules(std::move(modules)); });
}

void markLoss(const at::Tensor& loss) {
  ask([&](Recorder& recorder) { recorder.markLoss(loss); });
}

at::Tensor readValue(const at::Tensor& tensor, const std::string& reader) {
  return ask([&](Recorder& recorder) { return recorder.readMemory(tensor, reader); }, tensor);
}
bool mayVary(const at::Tensor& tensor) {
  return ask([&](Recorder& recorder) { return recorder.values().mayVary(tensor); });
}
void allowReads(bool allow) {
  ask([&](Recorder& recorder) { recorder.reads().allow(allow); });
}

int64_t valueId(const at::Tensor& tensor) {
  return ask(
      [&](Recorder& recorder) -> int64_t {
        return recorder.values().knows(tensor) ? recorder.valueOf(tensor) : ir::kNone;
      },
      ir::kNone);
}

void replaceBuffer(const at::Tensor& buffer, const at::Tensor& value, bool keeps_strides) {
  ask([&](Recorder& recorder) { recorder.replaceBuffer(buffer, value, keeps_strides); });
}
bool isReadAfterWrite(const at::Tensor& read, const at::Tensor& written) {
  return ask([&](Recorder& recorder) { return recorder.isReadAfterWrite(read, written); });
}
void keepValue(const at::Tensor& tensor) {
  ask([&](Recorder& recorder) {
    if (recorder.values().knows(tensor)) recorder.keep(tensor);
  });
}

bool isTraining() {
  return ask([](Recorder& recorder) { return recorder.isTraining(); });
}
std::string currentLine() {
  return ask([](Recorder& recorder) { return recorder.attribution().here("", nullptr).source; });
}

void outsideCapture(const std::function<void()>& function) {
  Recorder* recorder = currentRecorder();
  if (recorder == nullptr) return function();
  const DispatchMode::Paused paused(recorder->mode());
  currentRecorder() = nullptr;
  recorder->locks().unlockAll();
  const auto returned = c10::make_scope_exit([recorder] {
    recorder->locks().lockAgain();
    currentRecorder() = recorder;
  });
  function();
}

std::optional<int64_t> constantDifference(const at::Tensor& start, const at::Tensor& stop) {
  return ask([&](Recorder& recorder) {
    const DispatchMode::Paused paused(recorder.mode());
    const ir::ValueId from = recorder.valueOf(start), to = recorder.valueOf(stop);
    return constantDifference(recorder.recording(), recorder.writer(), from, to);
  });
}

int64_t numOperators(const std::string& part) {
  return ask([&](Recorder& recorder) { return numOperators(recorder.graph(), part); });
}
int64_t numReaders(const at::Tensor& tensor) {
  return ask([&](Recorder& recorder) { return numReaders(recorder.graph(), recorder.valueOf(tensor)); });
}
bool isCaptured(const at::Tensor& tensor) {
  return ask([&](Recorder& recorder) { return recorder.values().knows(tensor); });
}
bool isArgument(const at::Tensor& tensor) {
  return ask([&](Recorder& recorder) { return recorder.inputs().isArgument(tensor); });
}

}  // namespace abele::capture
