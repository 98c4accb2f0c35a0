"""Every step: position → lanes → masked batch."""
