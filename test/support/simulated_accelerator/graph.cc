// Graphs: what a stream was given, replayed as one. Where this torch has no graphs of devices, there are none.
#include <atomic>
#include <memory>

#include <c10/util/Exception.h>

#include "device.h"
#include "generator.h"
#include "simulated.h"

namespace simulated {
namespace {
std::atomic<int64_t> captures = 0, replays = 0;
}  // namespace
int64_t numCaptures() { return captures; }
int64_t numReplays() { return replays; }
}  // namespace simulated

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>

namespace simulated {
namespace {

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs&) {}
  ~Graph() override { clear(); }

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) override {
    TORCH_CHECK(!capture_, "this graph was captured before");
    static std::atomic<uint64_t> last_pool = 0;
    auto capture = std::make_shared<Capture>();
    capture->device = currentDevice();
    capture->stream = currentStream(capture->device);
    capture->pool = pool.first != 0 ? pool.first : ++last_pool;
    giveNumbers(capture->device, capture->stream, 0);  // as CUDA's graphs begin
    beginCapture(capture);
    capture_ = std::move(capture);
    holdPool(capture_->pool);
  }
  void capture_end() override {
    TORCH_CHECK(capture_, "this graph is not being captured");
    endCapture(*capture_);
    if (capture_->is_broken) {
      clear();
      TORCH_CHECK(false, "operation failed due to a previous error during capture");
    }
    ++captures;
  }
  void instantiate() override {}
  void replay() override {
    TORCH_CHECK(capture_, "there is nothing to replay");
    const int stream = currentStream(capture_->device);
    if (capture_->drawn > 0) giveNumbers(capture_->device, stream, capture_->drawn);
    simulated::replay(*capture_, stream);
    ++replays;
  }
  void reset() override { clear(); }
  at::MempoolId_t pool() const override { return {capture_ ? capture_->pool : 0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

 private:
  void clear() {
    if (capture_) dropPool(capture_->pool);
    capture_ = nullptr;
  }
  std::shared_ptr<Capture> capture_;
};

}  // namespace
}  // namespace simulated

namespace at {
REGISTER_GRAPH_IMPL(SIMULATED, ::simulated::Graph)
}  // namespace at
#endif
