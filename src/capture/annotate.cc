#include "capture/annotate.h"

#include "base/cat.h"
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

std::string nextAutoBlockId() { return cat(autoBlockId()++); }
void resetAutoBlockId() { autoBlockId() = 0; }

void pushScope(const std::string& name) {
  if (Recorder* recorder = currentRecorder()) recorder->attribution().pushScope(name);
}

void popScope() {
  if (Recorder* recorder = currentRecorder()) recorder->attribution().popScope();
}

void markLoss(const at::Tensor& loss) {
  if (Recorder* recorder = currentRecorder()) recorder->markLoss(loss);
}

void readValue(const at::Tensor& tensor, const std::string& reader) {
  if (Recorder* recorder = currentRecorder()) recorder->requireConstant(tensor, reader);
}

bool mayVary(const at::Tensor& tensor) {
  Recorder* recorder = currentRecorder();
  return recorder != nullptr && recorder->mayVary(tensor);
}

void allowReads(bool allow) {
  if (Recorder* recorder = currentRecorder()) recorder->allowReads(allow);
}

int64_t valueId(const at::Tensor& tensor) {
  Recorder* recorder = currentRecorder();
  return recorder && recorder->knows(tensor) ? recorder->valueOf(tensor) : -1;
}

void keepValue(const at::Tensor& tensor) {
  Recorder* recorder = currentRecorder();
  if (recorder && recorder->knows(tensor)) recorder->keep(recorder->valueOf(tensor));
}

}  // namespace abele::capture
