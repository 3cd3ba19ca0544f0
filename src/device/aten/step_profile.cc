#include "device/aten/step_profile.h"

#include "base/error.h"

namespace abele::device {

void StepProfile::begin() {
  is_on_ = at::hasThreadLocalCallbacks();
  functions_ = is_on_ ? at::get_record_function_tls_() : at::RecordFunctionTLS();
  info_ = is_on_ ? c10::ThreadLocalDebugInfo::current() : nullptr;
}

StepProfile::Action::Action(const StepProfile& profile, const exe::Segment& segment) {
  if (!profile.is_on_) return;
  functions_before_ = at::get_record_function_tls_();
  info_before_ = c10::ThreadLocalDebugInfo::current();
  at::set_record_function_tls_(profile.functions_);
  c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(profile.info_);
  record_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  record_->before(cat("abele::", segment.name));
}

StepProfile::Action::~Action() {
  if (!record_) return;
  record_.reset();
  at::set_record_function_tls_(functions_before_);
  c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(info_before_);
}

}  // namespace abele::device
