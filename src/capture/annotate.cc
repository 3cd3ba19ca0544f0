#include "capture/annotate.h"

#include "base/cat.h"
#include "capture/queries.h"
#include "capture/recorder.h"

namespace abele::capture {
namespace {

int& autoBlockId() {
  thread_local int next = 0;
  return next;
}

}  // namespace

bool isCapturing() { return currentRecorder() != nullptr; }

void beginBlock(const std::string& user_id, int ipu_id) {
  if (Recorder* recorder = currentRecorder()) recorder->attribution().beginBlock(user_id, ipu_id);
}

void endBlock() {
  if (Recorder* recorder = currentRecorder()) recorder->attribution().endBlock();
}

std::string currentBlock() {
  Recorder* recorder = currentRecorder();
  return recorder ? recorder->attribution().currentBlock() : std::string();
}

std::string nextAutoBlockId() { return cat(autoBlockId()++); }
void resetAutoBlockId() { autoBlockId() = 0; }

void pushScope(const std::string& name) {
  if (Recorder* recorder = currentRecorder()) recorder->attribution().pushScope(name);
}

void popScope() {
  if (Recorder* recorder = currentRecorder()) recorder->attribution().popScope();
}

void setModules(std::function<std::vector<std::string>()> modules) {
  if (Recorder* recorder = currentRecorder()) recorder->attribution().setModules(std::move(modules));
}

void markLoss(const at::Tensor& loss) {
  if (Recorder* recorder = currentRecorder()) recorder->markLoss(loss);
}

at::Tensor readValue(const at::Tensor& tensor, const std::string& reader) {
  Recorder* recorder = currentRecorder();
  return recorder ? recorder->readMemory(tensor, reader) : tensor;
}

bool mayVary(const at::Tensor& tensor) {
  Recorder* recorder = currentRecorder();
  return recorder != nullptr && recorder->values().mayVary(tensor);
}

void allowReads(bool allow) {
  if (Recorder* recorder = currentRecorder()) recorder->reads().allow(allow);
}

int64_t valueId(const at::Tensor& tensor) {
  Recorder* recorder = currentRecorder();
  return recorder && recorder->values().knows(tensor) ? recorder->valueOf(tensor) : -1;
}

void replaceBuffer(const at::Tensor& buffer, const at::Tensor& value) {
  if (Recorder* recorder = currentRecorder()) recorder->replaceBuffer(buffer, value);
}

void keepValue(const at::Tensor& tensor) {
  Recorder* recorder = currentRecorder();
  if (recorder && recorder->values().knows(tensor)) recorder->keep(tensor);
}

bool isTraining() {
  Recorder* recorder = currentRecorder();
  return recorder != nullptr && recorder->isTraining();
}

std::string currentLine() {
  Recorder* recorder = currentRecorder();
  return recorder ? recorder->attribution().here(nullptr).source : std::string();
}

void outsideCapture(const std::function<void()>& function) {
  Recorder* recorder = currentRecorder();
  if (recorder == nullptr) return function();
  const DispatchMode::Paused paused(recorder->mode());
  struct Outside {
    explicit Outside(Recorder* r) : recorder(r) {
      currentRecorder() = nullptr;
      recorder->locks().unlockAll();
    }
    ~Outside() {
      recorder->locks().lockAgain();
      currentRecorder() = recorder;
    }
    Recorder* recorder;
  } outside(recorder);
  function();
}

std::optional<int64_t> constantDifference(const at::Tensor& start, const at::Tensor& stop) {
  Recorder* recorder = currentRecorder();
  if (recorder == nullptr) return std::nullopt;
  const DispatchMode::Paused paused(recorder->mode());
  const ir::ValueId from = recorder->valueOf(start), to = recorder->valueOf(stop);
  return constantDifference(recorder->recording(), recorder->writer(), from, to);
}

int64_t numOperators(const std::string& part) {
  Recorder* recorder = currentRecorder();
  return recorder ? numOperators(recorder->graph(), part) : 0;
}

int64_t numReaders(const at::Tensor& tensor) {
  Recorder* recorder = currentRecorder();
  return recorder ? numReaders(recorder->graph(), recorder->valueOf(tensor)) : 0;
}

bool isCaptured(const at::Tensor& tensor) {
  Recorder* recorder = currentRecorder();
  return recorder != nullptr && recorder->values().knows(tensor);
}

bool isArgument(const at::Tensor& tensor) {
  Recorder* recorder = currentRecorder();
  return recorder != nullptr && recorder->inputs().isArgument(tensor);
}

}  // namespace abele::capture
