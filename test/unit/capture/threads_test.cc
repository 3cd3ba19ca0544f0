// Threads that use a model while another one captures it.
#include <future>
#include <thread>

#include <torch/library.h>

#include "capture/thread_watch.h"
#include "fixture.h"

namespace abele::capture {
namespace {

struct Meeting {
  std::promise<void> inside;  // the operator has begun
  std::promise<void> go;      // it may read
};
Meeting* meeting = nullptr;

double readSlowly(const at::Tensor& x) {
  meeting->inside.set_value();
  meeting->go.get_future().wait();
  return x.const_data_ptr<float>()[0];
}

TORCH_LIBRARY(abele_threads_test, library) {
  library.def("read_slowly(Tensor x) -> float");
  library.impl("read_slowly", c10::DispatchKey::CPU, TORCH_FN(readSlowly));
}

double callReadSlowly(const at::Tensor& x) {
  static const auto call = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("abele_threads_test::read_slowly", "")
                               .typed<double(const at::Tensor&)>();
  return call.call(x);
}

/// What another thread reads of a weight, for which a capture says setLocked(before), and setLocked(during) while the
/// thread is inside its operator.
double readWhile(const std::vector<bool>& before, const std::vector<bool>& during) {
  const at::Tensor weight = torch::full({4}, 3.0f);
  c10::StorageImpl* const storage = weight.storage().unsafeGetStorageImpl();
  Meeting here;
  meeting = &here;
  std::future<double> read;
  std::promise<void> begin;  // behind it: a failure below ends the thread before it is joined
  read = std::async(std::launch::async, [&weight, begun = begin.get_future()]() mutable {
    begun.get();
    return callReadSlowly(weight);
  });
  const ThreadWatch watch(nullptr);
  for (const bool locked : before) ThreadWatch::setLocked(storage, locked);
  begin.set_value();
  here.inside.get_future().wait();
  for (const bool locked : during) ThreadWatch::setLocked(storage, locked);
  here.go.set_value();
  try {
    const double value = read.get();
    if (!during.empty() && during.back()) {
      EXPECT_THROW(weight.const_data_ptr(), c10::Error) << "the lock is closed again behind the reader";
      ThreadWatch::setLocked(storage, false);
    }
    EXPECT_NE(weight.const_data_ptr(), nullptr);
    return value;
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    ThreadWatch::setLocked(storage, false);
    return 0;
  }
}

TEST(Threads, AReaderThatBeginsWhileTheModelIsLocked) { EXPECT_EQ(readWhile({true}, {false, true}), 3); }

TEST(Threads, AReaderThatBeginsWhileAnOperatorOfTheCaptureHasItOpen) { EXPECT_EQ(readWhile({true, false}, {true}), 3); }

TEST(Threads, AReaderThatBeginsBeforeTheCaptureKnowsTheModel) { EXPECT_EQ(readWhile({}, {true}), 3); }

TEST(Threads, AReaderThatTheCaptureOutlives) { EXPECT_EQ(readWhile({true, false}, {true, false}), 3); }

}  // namespace
}  // namespace abele::capture
